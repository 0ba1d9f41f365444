package ledger

// SetSegmentBytes sets the size of log files. TestMain calls it, before anything is opened.
func SetSegmentBytes(n int) { segmentBytes = n }

// LogFileBytes is logFileBytes.
var LogFileBytes = logFileBytes
