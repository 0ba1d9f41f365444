package main

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	"github.com/seqledger/seqledger/internal/wire"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

type configCommand struct {
	List configListCommand `cmd:"" default:"withargs" help:"Print all settings (default command)."`
	Get  configGetCommand  `cmd:"" help:"Print one setting."`
	Set  configSetCommand  `cmd:"" help:"Change one setting."`
}

func (*configCommand) Help() string {
	return `The settings are part of the ledger's replicated state. A new ledger has the defaults.

    eviction_interval  look for expired streams and entities after this many commands
    eviction_limit     look at this many entries in one round
    client_ttl         evict a stream after this much idle time
    receipt_window     keep this many receipts of each stream
    max_streams        allow an organization this many streams
    retain_blocks      drop transactions older than this, with their blocks and receipts; 0s keeps all
    retain_bytes       drop the oldest transactions when the newer ones have this many bytes; 0 means no limit

    seqledger config
    seqledger config set retain_blocks 2160h
    seqledger config get retain_blocks`
}

// setting is a field of the replicated configuration. It has the same name in Config and in UpdateConfigRequest.
type setting struct{ protoreflect.FieldDescriptor }

// settings are all fields, in the order of the API.
var settings = func() (all []setting) {
	fields := new(seqledgerv1.Config).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		all = append(all, setting{fields.Get(i)})
	}
	return all
}()

func (s setting) name() string { return string(s.Name()) }

// show formats the value as read takes it.
func (s setting) show(config *seqledgerv1.Config) string {
	value := config.ProtoReflect().Get(s.FieldDescriptor)
	if d, ok := value.Interface().(protoreflect.Message); ok {
		return d.Interface().(*durationpb.Duration).AsDuration().String() //nolint:forcetypeassert // No other message.
	}
	return number(value.Uint())
}

// read parses a value: a count, a duration, or bytes.
func (s setting) read(text string) (value protoreflect.Value, err error) {
	switch {
	case s.Message() != nil:
		d, err := time.ParseDuration(text)
		if err != nil || d < 0 {
			return value, errors.New("must be a duration with its unit, such as 30s, 24h or 2160h, up to 2562047h")
		}
		return protoreflect.ValueOf(durationpb.New(d).ProtoReflect()), nil
	case strings.HasSuffix(s.name(), "_bytes"):
		n, err := parseByteCount(text)
		return protoreflect.ValueOf(uint64(n)), err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		err = errors.New("must be a whole number of 0 or more")
	}
	return protoreflect.ValueOf(n), err
}

// findSetting returns the setting with a name, in which - may be _.
func findSetting(name string) (setting, error) {
	var names []string
	for _, s := range settings {
		if s.name() == strings.ReplaceAll(name, "-", "_") {
			return s, nil
		}
		names = append(names, s.name())
	}
	return setting{}, usage("unknown setting %q; the settings are %s", name, strings.Join(names, ", "))
}

// settingHint says how a setting is changed, and is empty if there is none with the name.
func settingHint(name string) string {
	s, err := findSetting(name)
	if err != nil {
		return ""
	}
	return ": it is a setting of the ledger; seqledger config set " + s.name() + " VALUE changes it"
}

type configSetCommand struct {
	clientFlags `embed:""`
	Name        string `arg:"" help:"Name of the setting, as list prints it."`
	Value       string `arg:"" help:"Its new value: a number, a duration such as 2160h, or a size such as 500GiB."`
}

func (*configSetCommand) Help() string {
	return `Changes one setting and prints all of them. A value beyond its limits is refused before the server is asked.
A smaller receipt_window applies at once: retries of older writes are then answered with ALREADY_COMMITTED.
What retention has dropped never comes back; a longer one applies to later blocks.

    seqledger config set retain_blocks 2160h
    seqledger config set retain_bytes 500GiB
    seqledger config set retain_blocks 0s`
}

func (c *configSetCommand) Run(e *environment) error {
	s, err := findSetting(c.Name)
	if err != nil {
		return err
	}
	value, err := s.read(c.Value)
	if err != nil {
		return usage("%s: %w", s.name(), err)
	}
	request := new(seqledgerv1.UpdateConfigRequest)
	m := request.ProtoReflect()
	m.Set(m.Descriptor().Fields().ByName(s.Name()), value)
	if _, err := wire.ConfigUpdate(request); err != nil {
		return usage("%w", err)
	}
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		config, err := admin.UpdateConfig(ctx, conn, request)
		if err != nil {
			return err
		}
		return showSettings(e, config)
	})
}

type configGetCommand struct {
	clientFlags `embed:""`
	Name        string `arg:"" help:"Name of the setting, as list prints it."`
}

func (*configGetCommand) Help() string {
	return `Prints only the value, in the form that set takes.

    seqledger config get retain_blocks`
}

// settingResult is the answer of get with --json.
type settingResult struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func (c *configGetCommand) Run(e *environment) error {
	s, err := findSetting(c.Name)
	if err != nil {
		return err
	}
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		config, err := serverConfig(ctx, conn)
		if err != nil {
			return err
		}
		value := s.show(config)
		return e.show(settingResult{s.name(), value}, func(t *table) { t.row(value) })
	})
}

type configListCommand struct {
	clientFlags `embed:""`
}

func (*configListCommand) Help() string {
	return `Prints each setting in the form that set takes. A duration of 0s and a size of 0 mean no limit.

    seqledger config list
    seqledger config list --json`
}

func (c *configListCommand) Run(e *environment) error {
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		config, err := serverConfig(ctx, conn)
		if err != nil {
			return err
		}
		return showSettings(e, config)
	})
}

// showSettings prints all settings. With --json, too, they have the names and the values that set takes.
func showSettings(e *environment, config *seqledgerv1.Config) error {
	values := make(map[string]string)
	for _, s := range settings {
		values[s.name()] = s.show(config)
	}
	return e.show(values, func(t *table) { showConfig(t, config) })
}

// serverConfig asks for the configuration.
func serverConfig(ctx context.Context, conn *client.Client) (*seqledgerv1.Config, error) {
	status, err := conn.Status(ctx)
	return status.GetConfig(), err
}
