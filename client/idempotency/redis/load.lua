-- Returns the version and the record of a key, and the time.
local stored = redis.call('HMGET', KEYS[1], 'version', 'record')
local time = redis.call('TIME')
return {stored[1], stored[2], time[1], time[2]}
