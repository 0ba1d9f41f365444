package outbox

import "time"

// Steps returns the names of the steps of the work on a stream, in their order.
func Steps() []string {
	names := make([]string, len(steps))
	for i, s := range steps {
		names[i] = string(s)
	}
	return names
}

// At has f called at each step of the work on a stream. It is called before Run.
func (r *Relay) At(f func(stream, at string)) {
	r.at = func(stream string, at step) { f(stream, string(at)) }
}

// SetSilence sets after how long without a statement PostgreSQL ends a transaction of the relay. It is called
// before Run.
func (r *Relay) SetSilence(d time.Duration) { r.silence = d }
