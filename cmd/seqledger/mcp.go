package main

import (
	"context"
	"errors"
	"io"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seqledger/seqledger/client"
	"github.com/seqledger/seqledger/internal/mcp/tools"
)

type mcpCommand struct {
	Tools mcpToolsCommand `cmd:"" default:"withargs" help:"Offer a ledger to an agent, on standard input and output. This is what mcp does without a word."`
	Guard mcpGuardCommand `cmd:"" help:"Stand before an MCP server, whose chosen tools run once for a key."`
}

type mcpToolsCommand struct {
	scopeFlags      `embed:""`
	connectionFlags `embed:""`
	Namespace       string        `help:"Namespace of keys where the agent names none." placeholder:"TEXT"`
	Timeout         time.Duration `help:"How long to try for an answer of the ledger." default:"30s"`
}

func (*mcpToolsCommand) Help() string {
	return `The agent gets the tools reserve, complete, reject, heartbeat, look_up, resolve, write_once and client_state. Errors
say what it should do next. It acts with this command's credential; a credential with few rights is a good idea.

    seqledger mcp --scope acme/agents --namespace charge
    seqledger mcp --server ledger.example.com:7450 --token-file agent.key --tls-ca ca.pem --scope acme/agents

In an agent's configuration:

    {"mcpServers": {"seqledger": {"command": "seqledger", "args": ["mcp", "--scope", "acme/agents"]}}}

seqledger serve --mcp offers the same over streamable HTTP, at /mcp of the server's own port.`
}

func (c *mcpToolsCommand) Run(e *environment) (err error) {
	scope, err := c.optional()
	if err != nil {
		return err
	}
	if c.Timeout <= 0 {
		return usage("--timeout must be more than 0")
	}
	o, err := c.connectionFlags.options()
	if err != nil {
		return err
	}
	o.Logger = e.log
	conn, err := client.New(o)
	if err != nil {
		return usage("--server %s: %w", c.Server, err)
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	server := tools.Server(tools.Options{
		Client: conn, Scope: scope, Namespace: c.Namespace, Timeout: c.Timeout, Version: buildVersion().Version,
	})
	err = server.Run(e.ctx, &mcp.IOTransport{Reader: io.NopCloser(e.stdin), Writer: keepOpen{e.stdout}})
	if e.ctx.Err() != nil || errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) {
		return nil // the client has disconnected, or this command was told to stop
	}
	return err
}

// keepOpen is a writer whose Close does nothing.
type keepOpen struct{ io.Writer }

func (keepOpen) Close() error { return nil }
