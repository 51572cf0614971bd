package main

import (
	"os"

	"example.com/holdfast/bench/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
