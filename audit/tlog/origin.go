package tlog

import "fmt"

// Origin returns the name that the log in dir gives itself, which is how to find
// the key to verify it with. Nothing of it has been checked.
func Origin(dir string) (string, error) {
	segs, err := listSegments(dir)
	if err != nil {
		return "", err
	}
	if len(segs) == 0 {
		return "", fmt.Errorf("%s is no log", dir)
	}
	r, err := openSegment(dir, segs[0])
	if err != nil {
		return "", err
	}
	return r.header.Origin, r.Close()
}
