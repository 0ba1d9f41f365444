package main

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/ledger/machine"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// setting is a field of the replicated configuration, by the name that the API gives it.
type setting struct {
	name string
	// read reads a value as set takes it: a count, nanoseconds, or bytes.
	read func(text string) (uint64, error)
	// put gives the value to the request of update, and to a configuration that the limits are tried on.
	put func(update *updateCommand, config *machine.Config, value uint64)
	// show returns the value in a form that read takes.
	show func(config *seqledgerv1.Config) string
}

// settings are all fields, in the order of the API.
var settings = []setting{
	{
		"eviction_interval", readNumber,
		func(u *updateCommand, c *machine.Config, v uint64) { u.EvictionInterval, c.EvictionInterval = &v, v },
		func(c *seqledgerv1.Config) string { return number(c.GetEvictionInterval()) },
	},
	{
		"client_ttl", readTime,
		func(u *updateCommand, c *machine.Config, v uint64) { u.ClientTTL, c.ClientTTL = duration(v), int64(v) },
		func(c *seqledgerv1.Config) string { return c.GetClientTtl().AsDuration().String() },
	},
	{
		"eviction_limit", readNumber,
		func(u *updateCommand, c *machine.Config, v uint64) { u.EvictionLimit, c.EvictionLimit = &v, v },
		func(c *seqledgerv1.Config) string { return number(c.GetEvictionLimit()) },
	},
	{
		"receipt_window", readNumber,
		func(u *updateCommand, c *machine.Config, v uint64) { u.ReceiptWindow, c.ReceiptWindow = &v, v },
		func(c *seqledgerv1.Config) string { return number(c.GetReceiptWindow()) },
	},
	{
		"max_streams", readNumber,
		func(u *updateCommand, c *machine.Config, v uint64) { u.MaxStreams, c.MaxStreams = &v, v },
		func(c *seqledgerv1.Config) string { return number(c.GetMaxStreams()) },
	},
	{
		"retain_blocks", readTime,
		func(u *updateCommand, c *machine.Config, v uint64) {
			u.RetainBlocks, c.RetainBlocks = duration(v), int64(v)
		},
		func(c *seqledgerv1.Config) string { return c.GetRetainBlocks().AsDuration().String() },
	},
	{
		"retain_bytes", readBytes,
		func(u *updateCommand, c *machine.Config, v uint64) {
			size := byteCount(v)
			u.RetainBytes, c.RetainBytes = &size, v
		},
		func(c *seqledgerv1.Config) string { return number(c.GetRetainBytes()) },
	},
}

func readNumber(text string) (uint64, error) {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, errors.New("must be a whole number of 0 or more")
	}
	return n, nil
}

// readTime reads nanoseconds. A number without a unit is none, but for 0.
func readTime(text string) (uint64, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, errors.New("must be a duration with its unit, such as 30s, 24h or 2160h")
	}
	return uint64(d), nil
}

func readBytes(text string) (uint64, error) {
	n, err := parseByteCount(text)
	return uint64(n), err
}

func duration(nanoseconds uint64) *time.Duration { return new(time.Duration(nanoseconds)) }

// findSetting returns the setting of a name, in which - may be _. The error is one of the command line.
func findSetting(name string) (*setting, error) {
	i := slices.IndexFunc(settings, func(s setting) bool { return s.name == strings.ReplaceAll(name, "-", "_") })
	if i >= 0 {
		return &settings[i], nil
	}
	var names []string
	for _, s := range settings {
		names = append(names, s.name)
	}
	return nil, usage("there is no setting %q; there are %s", name, strings.Join(names, ", "))
}

// configSetCommand changes one setting.
type configSetCommand struct {
	clientFlags `embed:""`
	Name        string `arg:"" help:"Name of the setting, as list prints it."`
	Value       string `arg:"" help:"Its new value: a number, a duration such as 2160h, or a size such as 500GiB."`
}

// Help is shown below the flags.
func (*configSetCommand) Help() string {
	return `Changes one setting and prints the whole configuration. A value beyond its limits is refused before
the server is asked. What retention has dropped never comes back: a longer one holds from then on.

    seqledger config set retain_blocks 2160h
    seqledger config set retain_bytes 500GiB
    seqledger config set retain_blocks 0s`
}

// Run is called by kong.
func (c *configSetCommand) Run(e *environment) error {
	s, err := findSetting(c.Name)
	if err != nil {
		return err
	}
	value, err := s.read(c.Value)
	if err != nil {
		return usage("%s: %w", s.name, err)
	}
	// Every other field has a value within its limits, so that the one that is wrong is this.
	update, tried := updateCommand{clientFlags: c.clientFlags}, machine.DefaultConfig()
	s.put(&update, &tried, value)
	if err := tried.Validate(); err != nil {
		return usage("%w", err)
	}
	return update.Run(e)
}

// configGetCommand prints one setting.
type configGetCommand struct {
	clientFlags `embed:""`
	Name        string `arg:"" help:"Name of the setting, as list prints it."`
}

// Help is shown below the flags.
func (*configGetCommand) Help() string {
	return `Prints the value alone, in a form that set takes.

    seqledger config get retain_blocks`
}

// settingResult is the answer of get with --json.
type settingResult struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Run is called by kong.
func (c *configGetCommand) Run(e *environment) error {
	s, err := findSetting(c.Name)
	if err != nil {
		return err
	}
	return withConfig(e, &c.clientFlags, func(config *seqledgerv1.Config) error {
		value := s.show(config)
		if e.json {
			return e.showObject(settingResult{s.name, value})
		}
		t := newTable(e.stdout)
		t.row(value)
		return t.flush()
	})
}

// configListCommand prints all settings.
type configListCommand struct {
	clientFlags `embed:""`
}

// Help is shown below the flags.
func (*configListCommand) Help() string {
	return `Prints each setting with its value, by the names and in the forms that set takes. A duration of 0s and a
size of 0 set no bound.

    seqledger config list
    seqledger config list --json`
}

// Run is called by kong.
func (c *configListCommand) Run(e *environment) error { return listSettings(e, &c.clientFlags) }

func listSettings(e *environment, flags *clientFlags) error {
	return withConfig(e, flags, func(config *seqledgerv1.Config) error {
		return e.show(config, func(t *table) {
			for _, s := range settings {
				t.field(s.name, s.show(config))
			}
		})
	})
}

// withConfig gives the server's configuration to a function.
func withConfig(e *environment, flags *clientFlags, use func(*seqledgerv1.Config) error) error {
	return flags.call(e, func(ctx context.Context, conn *client.Client) error {
		status, err := conn.Status(ctx)
		if err != nil {
			return err
		}
		return use(status.GetConfig())
	})
}
