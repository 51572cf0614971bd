// Package compare turns the samples of a run into one table that sets the
// backends side by side, and into a sentence that says what follows from the
// figures. It holds results and writes to a writer; it is used by one
// goroutine at a time.
package compare
