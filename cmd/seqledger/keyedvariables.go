package main

import (
	"fmt"
	"os"
	"reflect"
	"strconv"
	"time"

	"github.com/alecthomas/kong"
)

// keyedSettings are the variables that all programs with idempotency keys share, by the flag of
// gateway that each stands for. A flag's own variable wins.
var keyedSettings = map[string]string{
	"lease":        "SEQLEDGER_IDEMPOTENCY_PENDING_TTL_SECONDS",
	"ttl":          "SEQLEDGER_IDEMPOTENCY_COMMITTED_TTL_SECONDS",
	"rejected-ttl": "SEQLEDGER_IDEMPOTENCY_REJECTED_TTL_SECONDS",
	"wait":         "SEQLEDGER_IDEMPOTENCY_PENDING_WAIT_TIMEOUT",
}

// waitForPending is true or false, which is a wait of 0.
const waitForPending = "SEQLEDGER_IDEMPOTENCY_WAIT_FOR_PENDING"

// keyedVariables gives the flags of gateway their second variables, whose times are in seconds.
func keyedVariables(k *kong.Kong) error {
	return kong.Visit(k.Model.Node, func(node kong.Visitable, next kong.Next) error {
		command, ok := node.(*kong.Node)
		if !ok || command.Name != "gateway" {
			return next(nil)
		}
		for _, flag := range command.Flags {
			name, shared := keyedSettings[flag.Name]
			if !shared {
				continue
			}
			if flag.Name == "wait" {
				if text, set := os.LookupEnv(waitForPending); set && text != "true" {
					name = waitForPending
				}
			}
			flag.Envs = append(flag.Envs, name)
			flag.Tag.Envs = flag.Envs
			flag.Mapper = valueReader(readSeconds)
		}
		return next(nil)
	})
}

// readSeconds reads a duration, a number of seconds, or false for 0.
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
