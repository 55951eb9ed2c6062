// Package figures formats the figures of runs, and summarises those of several runs.
package figures

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// Unit is the format of a number.
type Unit uint8

// The units of figures.
const (
	Count Unit = iota // a whole number of things
	Rate              // things per second
	Time              // nanoseconds
	Share             // 0 to 1, written in percent
	Bytes             // bytes, written in binary multiples
)

// Dash is the text of a value that was not measured.
const Dash = "–"

// Lost is the latency of what did not arrive.
const Lost = time.Duration(math.MaxInt64)

// IsLost reports whether a value is the latency of what was lost, or the mean of one and another.
func (u Unit) IsLost(v float64) bool { return u == Time && v >= float64(Lost)/4 }

// Format formats v with about three digits, or as a dash if it is not a number.
func (u Unit) Format(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return Dash
	}
	switch u {
	case Count:
		return groupDigits(strconv.FormatFloat(v, 'f', 0, 64))
	case Rate:
		return rate(v) + "/s"
	case Time:
		if u.IsLost(v) {
			return "never (lost)"
		}
		return scaled(v, 1000, "ns", "µs", "ms", "s")
	case Share:
		return percent(v)
	}
	return scaled(v, 1024, "B", "KiB", "MiB", "GiB", "TiB")
}

// Digits formats v with at least three digits and no exponent.
func Digits(v float64) string {
	switch a := math.Abs(v); {
	case a >= 99.95:
		return groupDigits(strconv.FormatFloat(v, 'f', 0, 64))
	case a >= 9.995:
		return strconv.FormatFloat(v, 'f', 1, 64)
	case a >= 0.01 || a == 0:
		return strconv.FormatFloat(v, 'f', 2, 64)
	}
	return strconv.FormatFloat(v, 'g', 2, 64)
}

// rate formats large rates as whole numbers, so that columns align.
func rate(v float64) string {
	if v == math.Trunc(v) {
		return groupDigits(strconv.FormatFloat(v, 'f', 0, 64))
	}
	return Digits(v)
}

// percent formats a share; small shares differ from 0.
func percent(v float64) string {
	p := v * 100
	switch {
	case p == 0:
		return "0 %"
	case math.Abs(p) < 0.1:
		return strconv.FormatFloat(p, 'g', 2, 64) + " %"
	}
	return Digits(p) + " %"
}

// scaled divides v by step until it is below step, and adds the unit. Without a
// larger unit the value stays whole.
func scaled(v, step float64, units ...string) string {
	i := 0
	for i < len(units)-1 && math.Abs(v) >= step*0.9995 {
		v /= step
		i++
	}
	if i == 0 && v == math.Trunc(v) {
		return strconv.FormatFloat(v, 'f', 0, 64) + " " + units[0]
	}
	return Digits(v) + " " + units[i]
}

// groupDigits inserts commas into the integer part of a number.
func groupDigits(s string) string {
	sign := ""
	if strings.HasPrefix(s, "-") {
		sign, s = "-", s[1:]
	}
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return sign + s
}
