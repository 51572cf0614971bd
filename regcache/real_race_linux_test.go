//go:build race

package regcache_test

const raceDetector = true
