// Package cli is the command line of bench: it reads the flags, runs what they
// ask for and prints it. Main may be called once at a time.
package cli
