// Package hcatest is the test suite that every hca.Device of the project
// passes, whatever does the work in it: [Run]. What a device says in Attr that
// it cannot do is skipped, by name.
package hcatest
