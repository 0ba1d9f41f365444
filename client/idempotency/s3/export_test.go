package s3

// SettleAtOnce lets marks that have just been written be checked.
func (s *Store) SettleAtOnce() { s.backend.quota.settles = 0 }
