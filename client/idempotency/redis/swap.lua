-- Stores a record if its version is the given one. Returns 1 then, 0 if its version is another one or the swap comes
-- after its deadline, and -1 if the record would be one open key too many of its principal.
-- KEYS: record, counter, open keys of the principal. ARGV: version, record, time in ms until which to keep it, channel,
-- name, description, 'pending', 'unknown' or '' for a record that is not open, most open keys or 0, deadline in us,
-- time in ms until which the key is open.
local current = redis.call('HGET', KEYS[1], 'version') or ''
if current ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
if now > tonumber(ARGV[9]) then
  return 0
end
-- An open key is a member until its outcome is given up, so that a record that nobody settles does not count for ever.
if ARGV[7] ~= '' then
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', string.format('(%.0f', math.floor(now / 1000)))
end
if ARGV[7] == 'pending' and ARGV[8] ~= '0' and not redis.call('ZSCORE', KEYS[3], ARGV[5]) and
  redis.call('ZCARD', KEYS[3]) >= tonumber(ARGV[8]) then
  return -1
end
local version = math.max(now, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
local text = string.format('%.0f', version)
redis.call('SET', KEYS[2], text)
redis.call('HSET', KEYS[1], 'version', text, 'record', ARGV[2], 'description', ARGV[6])
redis.call('PEXPIREAT', KEYS[1], ARGV[3])
if ARGV[7] == '' then
  redis.call('ZREM', KEYS[3], ARGV[5])
else
  redis.call('ZADD', KEYS[3], ARGV[10], ARGV[5])
  redis.call('PEXPIREAT', KEYS[3], redis.call('ZREVRANGE', KEYS[3], 0, 0, 'WITHSCORES')[2])
end
if current ~= '' then -- no caller waits for a key that is free
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
return 1
