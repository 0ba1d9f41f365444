package main

import (
	"fmt"
	"slices"
	"strings"
)

// row is something that every system is asked to do.
type row struct {
	workload  string // fresh, retry-hot, retry-cold, mixed-1, mixed-10
	writers   int
	pipelined bool
	payload   int // bytes
}

const (
	smallPayload = 128
	largePayload = 4096
)

// name tells the row, as -rows matches it.
func (r row) name() string {
	name := fmt.Sprintf("%s/%d", r.workload, r.writers)
	if r.pipelined {
		name += "/pipelined"
	}
	if r.payload != smallPayload {
		name += fmt.Sprintf("/%dB", r.payload)
	}
	return name
}

// fits reports whether a system can do a row.
func (r row) fits(k *kind) bool {
	return (!r.pipelined || k.pipelines) && (r.workload == "fresh" || k.retries)
}

// retryEvery is how many operations of a mixed row have one retry, 0 for none.
func (r row) retryEvery() int {
	switch r.workload {
	case "mixed-1":
		return 100
	case "mixed-10":
		return 10
	}
	return 0
}

// allRows are measured in this order.
func allRows() []row {
	var rows []row
	for _, writers := range []int{1, 16, 64, 256, 1024} {
		rows = append(rows, row{"fresh", writers, false, smallPayload})
	}
	return append(rows,
		row{"fresh", 1024, true, smallPayload},
		row{"fresh", 64, false, largePayload},
		row{"retry-hot", 64, false, smallPayload},
		row{"mixed-1", 64, false, smallPayload},
		row{"mixed-10", 64, false, smallPayload},
		// Last, because it restarts the systems.
		row{"retry-cold", 64, false, smallPayload},
	)
}

// chosenKinds returns the requested systems that are available, and prints on notice what is
// missing.
func chosenKinds(names string, notice func(format string, args ...any)) ([]kind, error) {
	all := kinds()
	var wanted []string
	if names != "" {
		wanted = strings.Split(names, ",")
	}
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(k kind) bool { return k.name == name }) {
			return nil, fmt.Errorf("-systems: there is no system %q", name)
		}
	}
	var chosen []kind
	for _, k := range all {
		if wanted != nil && !slices.Contains(wanted, k.name) {
			continue
		}
		version, err := k.find()
		if err != nil {
			notice("%-20s not measured: %v", k.name, err)
			continue
		}
		notice("%-20s %s", k.name, version)
		notice("%-20s   %s", "", k.settings)
		if k.lacks != "" {
			notice("%-20s   does not do: %s", "", k.lacks)
		}
		chosen = append(chosen, k)
	}
	return chosen, nil
}
