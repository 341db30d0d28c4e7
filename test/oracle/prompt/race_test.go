//go:build race

package oracle

// raceDetector: nothing here is concurrent, and all of it would take minutes.
const raceDetector = true
