//go:build !race

package kvindex

// raceEnabled: under the race detector sync.Pool drops items at random.
const raceEnabled = false
