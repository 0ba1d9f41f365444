// Package load puts a load on something and measures how long the answers take.
//
// Closed is a loop for each worker: the next operation begins when the last one is answered. It
// measures how much a system can do. Open begins operations at a fixed rate, whether or not the
// earlier ones are answered, and measures each from the time at which it was due: a stall
// counts for every operation that had to wait, not just for one.
package load
