package report

import (
	"math"
	"strconv"
	"strings"
)

// Unit says how a number is written.
type Unit uint8

// The units of figures.
const (
	UnitNumber Unit = iota // a plain number
	UnitCount              // a whole number of things
	UnitRate               // things per second
	UnitTime               // nanoseconds
	UnitShare              // 0 to 1, written in percent
	UnitBytes              // bytes, written in binary multiples
)

// none is written for what was not measured.
const none = "–"

// Format writes v for a reader, with about three digits. What is not a number
// is written as a dash.
func (u Unit) Format(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return none
	}
	switch u {
	case UnitCount:
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	case UnitRate:
		return rate(v) + "/s"
	case UnitTime:
		return scaled(v, 1000, "ns", "µs", "ms", "s")
	case UnitShare:
		return percent(v)
	case UnitBytes:
		return scaled(v, 1024, "B", "KiB", "MiB", "GiB", "TiB")
	}
	return digits(v)
}

// digits writes v with at least three digits and no exponent.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.01 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// rate writes large rates in whole numbers, so that columns of them line up.
func rate(v float64) string {
	if v == math.Trunc(v) {
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	}
	return digits(v)
}

// percent keeps small shares apart from none at all.
func percent(v float64) string {
	p := v * 100
	switch {
	case p == 0:
		return "0 %"
	case math.Abs(p) < 0.1:
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	}
	return digits(p) + " %"
}

// scaled divides v by step until it is short, and names the unit. What has no
// larger unit stays whole in the first one.
func scaled(v, step float64, units ...string) string {
	i := 0
	for i < len(units)-1 && math.Abs(v) >= step*0.9995 {
		v /= step
		i++
	}
	if i == 0 && v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 0, 64) + " " + units[0]
	}
	return digits(v) + " " + units[i]
}

// grouped puts commas into the whole part of a number.
func grouped(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}

// ratio writes a quotient, and a dash for one that is not known.
func ratio(v float64) string {
	if v <= 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return none
	}
	if v >= 100 {
		return grouped(strconv.FormatFloat(v, 'f', 0, 64))
	}
	return strconv.FormatFloat(v, 'f', 3, 64)
}

// printable keeps control characters of names away from a terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}
