//go:build linux && race

package leaktest

const raceDetector = true
