// Package eventtest is what the tests of event sources share: memory of every
// kind where a test wants it, and the ways of losing it that take more than one
// line. Everything goes through raw system calls that know of no monitor, so a
// test that uses it belongs into a child process.
package eventtest
