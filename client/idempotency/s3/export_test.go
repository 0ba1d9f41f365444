package s3

import "time"

// SettleAtOnce lets marks that have just been written be checked. The time that they are compared with has whole
// seconds, theirs has fractions.
func (s *Store) SettleAtOnce() { s.backend.quota.settles = -time.Second }

// SetTokensTimeout sets how long a store may take to draw tokens. It is called before the first call.
func SetTokensTimeout(s *Store, d time.Duration) { s.backend.tokens.timeout = d }
