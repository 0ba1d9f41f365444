// Package harness is what all benchmarks share: loads, processes and what they use up, figures
// and their medians, tables and charts.
//
// [Run] puts a load on something and measures how long the answers take: closed, where the next
// operation of a worker begins when its last one is answered, or open, at a fixed rate. [Launch]
// starts the servers that are measured, [Usage] reads what they cost. A measurement is a map of
// named [Values]; rounds are taken in [Turns], and [Medians] joins them. A [Table] says which
// values are columns, for people, and a [Report] keeps them as JSON.
package harness
