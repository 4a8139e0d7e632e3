"""Authenticated, bounded messages over sockets: handshake, limits and strict JSON; standard library only."""
