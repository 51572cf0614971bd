// Package imb has the conventions of the Intel MPI Benchmarks 2021.11 that
// people and their scripts know: message sizes, sample counts and the layout
// of the output, for the benchmarks that this project runs. It measures
// nothing. Everything in it is a value or writes to a writer that is given;
// nothing is shared.
package imb
