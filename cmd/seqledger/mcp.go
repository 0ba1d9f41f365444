package main

// mcpCommand groups what speaks the Model Context Protocol.
type mcpCommand struct {
	Guard mcpGuardCommand `cmd:"" help:"Stand before an MCP server, whose chosen tools run once for a key."`
}
