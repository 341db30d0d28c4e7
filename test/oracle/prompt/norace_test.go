//go:build !race

package oracle

const raceDetector = false
