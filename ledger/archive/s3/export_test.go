package s3

import "time"

// SetPatience sets after how long without a byte a request is given up.
func (t *Target) SetPatience(d time.Duration) { t.patience = d }
