package main

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// grid is a table. Its first row is the head; the columns from left on are
// numbers, and ranged right.
type grid struct {
	rows [][]string
	left int // 0: one
}

func (g *grid) row(cells ...string) { g.rows = append(g.rows, cells) }

// plain prints for a terminal.
func (g *grid) plain(w io.Writer) {
	flags := tabwriter.AlignRight
	if g.left > 1 {
		flags = 0
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', flags)
	for _, r := range g.rows {
		if g.left > 1 { // text to the end of the line
			fmt.Fprintln(t, strings.Join(r, "\t"))
		} else {
			fmt.Fprintln(t, strings.Join(r, "\t")+"\t")
		}
	}
	t.Flush()
}

// markdown prints for a document.
func (g *grid) markdown(w io.Writer) {
	for i, r := range g.rows {
		for _, cell := range r {
			fmt.Fprintf(w, "| %s ", strings.ReplaceAll(cell, "|", "\\|"))
		}
		fmt.Fprintln(w, "|")
		if i > 0 {
			continue
		}
		for c := range r {
			if c < max(g.left, 1) {
				fmt.Fprint(w, "|---")
			} else {
				fmt.Fprint(w, "|---:")
			}
		}
		fmt.Fprintln(w, "|")
	}
}
