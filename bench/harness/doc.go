// Package harness is what all benchmarks share: processes and what they use, figures and their medians, and tables.
//
// [Launch] starts the servers that are measured, and [Usage] reads what they cost. A measurement is a map of named
// [Values]; rounds are taken in [Turns], and [Medians] joins them. A [Table] selects the values that are columns, and a
// [Report] keeps them as JSON. The loads are in package internal/load.
package harness
