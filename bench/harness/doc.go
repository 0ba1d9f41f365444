// Package harness is what all benchmarks share: what processes use, figures and their medians, and tables.
//
// [Usage] reads what servers cost. A measurement is a map of named [Values]; rounds are taken in [Turns], and [Medians]
// joins them. A [Table] selects the values that are columns, and a [Report] keeps them as JSON. The loads are in
// package internal/load.
package harness
