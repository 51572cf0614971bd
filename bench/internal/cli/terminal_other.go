//go:build !linux

package cli

import "os"

func isTerminal(*os.File) bool { return false }
