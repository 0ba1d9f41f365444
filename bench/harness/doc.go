// Package harness is what all benchmarks share: processes and what they use up, figures and their medians, tables and
// charts.
//
// [Launch] starts the servers that are measured, [Usage] reads what they cost. A measurement is a map of named
// [Values]; rounds are taken in [Turns], and [Medians] joins them. A [Table] says which values are columns, for people,
// and a [Report] keeps them as JSON. The loads are package internal/load's.
package harness
