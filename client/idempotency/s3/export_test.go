package s3

import "time"

// SettleAtOnce lets a store check marks that have just been written. It compares their times, which have fractions of a
// second, with a time in whole seconds.
func (s *Store) SettleAtOnce() { s.backend.quota.settles = -time.Second }

// SetTokensTimeout sets how long a store may take to draw tokens. It must be called before the first call.
func SetTokensTimeout(s *Store, d time.Duration) { s.backend.tokens.timeout = d }
