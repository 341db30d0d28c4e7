package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// builtin is a function that was not called.
type builtin string

// markup is a string that the filter safe has marked: it prints as it is, but
// what is added to it is escaped for HTML.
type markup string

var escaper = strings.NewReplacer("&", "&amp;", ">", "&gt;", "<", "&lt;", "'", "&#39;", `"`, "&#34;")

// plain is v without a mark.
func plain(v Value) Value {
	if m, ok := v.(markup); ok {
		return string(m)
	}
	return v
}

// unmarked refuses a marked string where what Python would do with the mark is
// not implemented.
func unmarked(v Value, what string) error {
	if _, ok := v.(markup); ok {
		return fmt.Errorf("%w: %s of what was marked safe", ErrUnsupported, what)
	}
	return nil
}

// unmarkedAll is unmarked for what is done to v with args.
func unmarkedAll(v Value, args []Value, what string) error {
	for _, a := range args {
		if err := unmarked(a, what); err != nil {
			return err
		}
	}
	return unmarked(v, what)
}

// addMarkup is a + b where one of them is marked.
func (r *run) addMarkup(a, b Value) (Value, error) {
	var out string
	for _, v := range []Value{a, b} {
		switch v := v.(type) {
		case markup:
			out += string(v)
		case string:
			if err := r.pay(6 * len(v)); err != nil {
				return nil, err
			}
			out += escaper.Replace(v)
		default:
			return nil, fmt.Errorf("%w: + of what was marked safe and %s", ErrUnsupported, typeName(v))
		}
	}
	return markup(out), r.pay(len(out))
}

// failExpr is an expression that cannot be evaluated.
type failExpr struct{ err error }

func (x *failExpr) eval(*run) (Value, error) { return nil, x.err }

// timeExpr is strftime_now(format).
type timeExpr struct{ format expr }

func (x *timeExpr) eval(r *run) (Value, error) {
	v, err := x.format.eval(r)
	if err != nil {
		return nil, err
	}
	format, ok := v.(string)
	switch {
	case !ok:
		return nil, fmt.Errorf("strftime() argument 1 must be str, not %s", typeName(v))
	case r.now.IsZero():
		return nil, fmt.Errorf("%w: strftime_now without a clock", ErrUnsupported)
	}
	if err := r.pay(16 * len(format)); err != nil {
		return nil, err
	}
	return strftime(format, r.now)
}

var layouts = map[byte]string{
	'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'd': "02", 'e': "_2", 'D': "01/02/06", 'F': "2006-01-02",
	'H': "15", 'I': "03", 'j': "002", 'm': "01", 'M': "04", 'p': "PM", 'R': "15:04", 'S': "05", 'T': "15:04:05",
	'x': "01/02/06", 'X': "15:04:05", 'c': "Mon Jan _2 15:04:05 2006", 'y': "06", 'Y': "2006", 'n': "\n", 't': "\t",
}

// strftime is that of C in its own locale, for the conversions that mean the
// same everywhere. (Python's datetime.now has no zone, so %z and %Z are empty.)
func strftime(format string, now time.Time) (Value, error) {
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		if i++; i == len(format) {
			return nil, fmt.Errorf("%w: strftime format that ends with %%", ErrUnsupported)
		}
		c := format[i]
		layout, ok := layouts[c]
		switch {
		case ok:
			b.WriteString(now.Format(layout))
		case c == '%':
			b.WriteByte('%')
		case c == 'z' || c == 'Z':
		case c == 'f':
			fmt.Fprintf(&b, "%06d", now.Nanosecond()/1000)
		case c == 'w':
			fmt.Fprintf(&b, "%d", int(now.Weekday()))
		case c == 'u':
			fmt.Fprintf(&b, "%d", (int(now.Weekday())+6)%7+1)
		case c == 's':
			fmt.Fprintf(&b, "%d", now.Unix())
		default:
			return nil, fmt.Errorf("%w: strftime conversion %%%c", ErrUnsupported, c)
		}
	}
	return b.String(), nil
}

// format is format % args, for the conversions templates use.
func (r *run) format(format string, args []Value) (Value, error) {
	var b strings.Builder
	for format != "" {
		i := strings.IndexByte(format, '%')
		if i < 0 {
			i = len(format)
		}
		b.WriteString(format[:i])
		if format = format[i:]; format == "" {
			break
		}
		n := 1 + digits(format[1:])
		if n == len(format) || n > 4 {
			return nil, fmt.Errorf("%w: this format", ErrUnsupported)
		}
		flags, verb := format[1:n], format[n]
		format = format[n+1:]
		if verb == '%' && flags == "" {
			b.WriteByte('%')
			continue
		}
		if len(args) == 0 {
			return nil, errors.New("not enough arguments for format string")
		}
		s, err := r.conversion(flags, verb, args[0])
		if err != nil {
			return nil, err
		}
		b.WriteString(s)
		args = args[1:]
		if err := r.pay(b.Len()); err != nil {
			return nil, err
		}
	}
	if len(args) > 0 {
		return nil, errors.New("not all arguments converted during string formatting")
	}
	return b.String(), r.step()
}

func (r *run) conversion(flags string, verb byte, v Value) (string, error) {
	i, _, isFloat, isNumber := number(v)
	switch {
	case verb == 's' && flags == "":
		return r.str(v)
	case verb == 'c' && flags == "":
		if s, ok := v.(string); ok && len([]rune(s)) == 1 {
			return s, nil
		}
		if !isNumber || isFloat {
			return "", errors.New("%c requires int or char")
		}
		if i < 0 || i > 0x10ffff {
			return "", errors.New("%c arg not in range(0x110000)")
		}
		if i >= 0xd800 && i < 0xe000 {
			return "", fmt.Errorf("%w: half a surrogate pair", ErrUnsupported)
		}
		return string(rune(i)), nil
	case (verb == 'd' || verb == 'x' || verb == 'X') && isNumber && !isFloat:
		return fmt.Sprintf("%"+flags+string(verb), i), nil
	case !isNumber && (verb == 'd' || verb == 'x' || verb == 'X'):
		return "", fmt.Errorf("%%%c format: a number is required, not %s", verb, typeName(v))
	}
	return "", fmt.Errorf("%w: format conversion %%%s%c", ErrUnsupported, flags, verb)
}

// jinjaFilters and jinjaTests are all that Jinja has, so that others can be
// told from those that are not implemented here.
var (
	jinjaFilters = strings.Fields(`abs attr batch capitalize center count d default dictsort e escape filesizeformat first
		float forceescape format groupby indent int items join last length list lower map max min pprint random reject
		rejectattr replace reverse round safe select selectattr slice sort string striptags sum title tojson trim truncate
		unique upper urlencode urlize wordcount wordwrap xmlattr`)
	jinjaTests = strings.Fields(`!= < <= == > >= boolean callable defined divisibleby eq equalto escaped even false filter
		float ge greaterthan gt in integer iterable le lessthan lower lt mapping ne none number odd sameas sequence string
		test true undefined upper`)
)
