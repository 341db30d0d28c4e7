package main

import (
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable is a text of somebody else's, safe to print: what moves a cursor,
// begins a line, ends a cell or turns the direction of writing is escaped, so
// that a record cannot look like another, or like more than one.
func printable(s string) string {
	harmless := func(r rune) bool { return r == ' ' || unicode.IsPrint(r) && r != utf8.RuneError }
	if strings.IndexFunc(s, func(r rune) bool { return !harmless(r) }) < 0 {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if harmless(r) {
			b.WriteRune(r)
		} else {
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// sayf is fmt.Fprintf with every text made printable but the format.
func sayf(w io.Writer, format string, args ...any) {
	safe := make([]any, len(args))
	for i, a := range args {
		switch v := a.(type) {
		case string:
			safe[i] = printable(v)
		case []string:
			safe[i] = printable(fmt.Sprint(v))
		case error:
			safe[i] = printable(v.Error())
		default:
			safe[i] = a // numbers, and texts that are ours
		}
	}
	fmt.Fprintf(w, format, safe...)
}

// printableLines is a text of several lines, each made printable.
func printableLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}

// complain tells the user of an error, which may quote anybody. Several errors that
// are joined are several lines.
func complain(w io.Writer, err error) {
	fmt.Fprintf(w, "sallyport: %s\n", printableLines(err.Error()))
}
