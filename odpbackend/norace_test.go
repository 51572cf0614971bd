//go:build !race

package odpbackend_test

const raceDetector = false
