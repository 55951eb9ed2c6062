package machine

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// maxCPU is the most CPUs for which Linux can be built.
const maxCPU = 8192

var errCPUs = errors.New("is not a list of CPU numbers, such as 0-31,64-95")

// ParseCPUs reads a list of CPUs as the kernel writes it, such as 0-3,8. It keeps the
// order of the list and refuses a CPU that is named twice. An empty text is an empty list.
func ParseCPUs(list string) (cpus []int, err error) {
	if strings.TrimSpace(list) == "" {
		return nil, nil
	}
	seen := map[int]bool{}
	for item := range strings.SplitSeq(list, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(item), "-")
		first, err := strconv.ParseUint(low, 10, 16)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(high, 10, 16)
		}
		if err != nil || last < first || last >= maxCPU {
			return nil, fmt.Errorf("%q %w", list, errCPUs)
		}
		for cpu := int(first); cpu <= int(last); cpu++ {
			if seen[cpu] {
				return nil, fmt.Errorf("%q names CPU %d twice", list, cpu)
			}
			seen[cpu] = true
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
}

// FormatCPUs writes a list in ascending order as the kernel does.
func FormatCPUs(cpus []int) string {
	cpus = slices.Sorted(slices.Values(cpus))
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		part := strconv.Itoa(cpus[i])
		if j > i {
			part += "-" + strconv.Itoa(cpus[j])
		}
		parts, i = append(parts, part), j+1
	}
	return strings.Join(parts, ",")
}

// parseMask reads a bit mask of CPUs as the kernel writes it: words of 32 bits in
// hexadecimal, the highest first, separated by commas. What it cannot read is empty.
func parseMask(mask string) (cpus []int) {
	words := strings.Split(mask, ",")
	slices.Reverse(words)
	for i, word := range words {
		bits, err := strconv.ParseUint(word, 16, 32)
		if err != nil {
			return nil
		}
		for bit := range 32 {
			if bits>>bit&1 == 1 {
				cpus = append(cpus, 32*i+bit)
			}
		}
	}
	return cpus
}
