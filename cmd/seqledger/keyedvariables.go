package main

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/alecthomas/kong"
)

// The environment variables shared by all programs with idempotency keys. Times are in seconds.
const (
	pendingTTL      = "SEQLEDGER_IDEMPOTENCY_PENDING_TTL_SECONDS"
	committedTTL    = "SEQLEDGER_IDEMPOTENCY_COMMITTED_TTL_SECONDS"
	rejectedTTL     = "SEQLEDGER_IDEMPOTENCY_REJECTED_TTL_SECONDS"
	maxEntries      = "SEQLEDGER_IDEMPOTENCY_MAX_ENTRIES"
	cleanupInterval = "SEQLEDGER_IDEMPOTENCY_CLEANUP_INTERVAL_SECONDS"
	pendingWait     = "SEQLEDGER_IDEMPOTENCY_PENDING_WAIT_TIMEOUT"
	waitForPending  = "SEQLEDGER_IDEMPOTENCY_WAIT_FOR_PENDING" // true or false; false is a wait of 0
)

// keyedSettings maps, per command, the shared variables to the flags that they set. A flag's own variable takes
// precedence. A command also knows the variables that mean nothing to it, because they are set for all commands.
var keyedSettings = map[string]map[string]string{
	"gateway": {
		"lease": pendingTTL, "ttl": committedTTL, "rejected-ttl": rejectedTTL, "wait": pendingWait,
		"max-entries": maxEntries, "cleanup-interval": cleanupInterval,
	},
	"guard": {
		"lease": pendingTTL, "key-window": committedTTL, "wait": pendingWait, "max-entries": maxEntries,
		"cleanup-interval": cleanupInterval,
	},
	"serve": {"key-lease": pendingTTL, "key-ttl": committedTTL, "key-rejected-ttl": rejectedTTL},
}

// keyedVariables gives flags their second variables.
func keyedVariables(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		command, ok := node.(*kong.Node)
		if !ok || keyedSettings[command.Name] == nil {
			return next(nil)
		}
		for _, flag := range command.Flags {
			name, shared := keyedSettings[command.Name][flag.Name]
			if !shared {
				continue
			}
			if name == pendingWait {
				if text, set := os.LookupEnv(waitForPending); set && text != "true" {
					name = waitForPending
				}
			}
			flag.Envs = append(flag.Envs, name)
			flag.Tag.Envs = flag.Envs
			if flag.Target.Type() == reflect.TypeFor[time.Duration]() {
				flag.Mapper = valueReader(readSeconds)
			}
		}
		return next(nil)
	})
}

// readSeconds reads a duration: a number of seconds, or false for 0.
func readSeconds(text string, target reflect.Value) error {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		target.SetInt(int64(time.Duration(n) * time.Second))
		return nil
	}
	if text == "false" {
		target.SetInt(0)
		return nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q must be a number of seconds, or a duration such as 500ms, 30s, 5m or 24h", text)
	}
	target.SetInt(int64(d))
	return nil
}
