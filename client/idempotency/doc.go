// Package idempotency lets work that is done elsewhere run once for a key that its client chose.
package idempotency
