// Package load puts a load on something and measures how long the answers take.
//
// Closed is a loop for each worker: the next operation begins when the last one
// is answered. It tells how much a system can do. Open begins operations at a
// fixed rate, whether the earlier ones are answered or not, and counts each
// from the moment at which it was due: a system that stalls is charged for
// everybody who had to wait, not for one caller alone.
package load
