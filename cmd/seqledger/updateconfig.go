package main

import (
	"context"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/client/admin"
	seqledgerv1 "github.com/seqledger/seqledger/proto/seqledger/v1"
)

// configCommand is about the replicated configuration. Without a word it is what updateCommand does.
type configCommand struct {
	Update updateCommand     `cmd:"" default:"withargs" help:"help_config_update"`
	Set    configSetCommand  `cmd:"" help:"Change one setting."`
	Get    configGetCommand  `cmd:"" help:"Print one setting."`
	List   configListCommand `cmd:"" help:"Print all settings."`
}

// Help is shown below the flags.
func (*configCommand) Help() string {
	return `The settings are part of the ledger's replicated state. config alone prints them, with the flags of config
update it changes several at once.

    seqledger config
    seqledger config set retain_blocks 2160h
    seqledger config get retain_blocks
    seqledger config --receipt-window 256 --max-streams 1000000`
}

// updateCommand changes the replicated configuration. Its flags have the names of serve's flags
// but no environment variables: a variable that was set for new ledgers must never change a
// running one.
type updateCommand struct {
	clientFlags      `embed:""`
	EvictionInterval *uint64        `help:"help_update_eviction_interval" env:"-" placeholder:"N"`
	ClientTTL        *time.Duration `name:"client-ttl" help:"help_update_client_ttl" env:"-" placeholder:"DURATION"`
	EvictionLimit    *uint64        `help:"Look at so many entries at a time." env:"-" placeholder:"N"`
	ReceiptWindow    *uint64        `help:"Keep so many receipts of each stream." env:"-" placeholder:"N"`
	MaxStreams       *uint64        `help:"Allow an organization so many streams." env:"-" placeholder:"N"`
	RetainBlocks     *time.Duration `help:"help_update_retain_blocks" env:"-" placeholder:"DURATION"`
	RetainBytes      *byteCount     `help:"help_update_retain_bytes" env:"-" placeholder:"SIZE"`
}

// Help is shown below the flags.
func (*updateCommand) Help() string {
	return `Without flags the configuration is printed, as list does it. With flags what is given is changed, the rest is
left, and the whole configuration is printed. A smaller receipt window holds
at once: retries of older writes are then answered with ALREADY_COMMITTED. What retention has dropped never comes
back: a longer one holds from then on.

    seqledger config --client-ttl 48h
    seqledger config --receipt-window 256 --max-streams 1000000
    seqledger config --retain-blocks 2160h --retain-bytes 500GiB`
}

// Run is called by kong.
func (c *updateCommand) Run(e *environment) error {
	request := new(seqledgerv1.UpdateConfigRequest)
	// Absent and zero differ, because the ledger does not change absent fields.
	if c.EvictionInterval != nil {
		request.EvictionIntervalSet = &seqledgerv1.UpdateConfigRequest_EvictionInterval{
			EvictionInterval: *c.EvictionInterval,
		}
	}
	if c.ClientTTL != nil {
		request.ClientTtl = durationpb.New(*c.ClientTTL)
	}
	if c.EvictionLimit != nil {
		request.EvictionLimitSet = &seqledgerv1.UpdateConfigRequest_EvictionLimit{EvictionLimit: *c.EvictionLimit}
	}
	if c.ReceiptWindow != nil {
		request.ReceiptWindowSet = &seqledgerv1.UpdateConfigRequest_ReceiptWindow{ReceiptWindow: *c.ReceiptWindow}
	}
	if c.MaxStreams != nil {
		request.MaxStreamsSet = &seqledgerv1.UpdateConfigRequest_MaxStreams{MaxStreams: *c.MaxStreams}
	}
	if c.RetainBlocks != nil {
		request.RetainBlocks = durationpb.New(*c.RetainBlocks)
	}
	if c.RetainBytes != nil {
		request.RetainBytesSet = &seqledgerv1.UpdateConfigRequest_RetainBytes{RetainBytes: uint64(*c.RetainBytes)}
	}
	if proto.Size(request) == 0 { // an update without a field would take a place in the log
		return listSettings(e, &c.clientFlags)
	}
	return c.call(e, func(ctx context.Context, conn *client.Client) error {
		config, err := admin.UpdateConfig(ctx, conn, request)
		if err != nil {
			return err
		}
		return e.show(config, func(t *table) { showConfig(t, config) })
	})
}
