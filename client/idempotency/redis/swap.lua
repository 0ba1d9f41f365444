-- Stores a record if its version is the given one, and returns 1 then.
-- KEYS: record, counter. ARGV: version, record, time in ms until which to keep it or 0, channel, name.
local current = redis.call('HGET', KEYS[1], 'version') or ''
if current ~= ARGV[1] then
  return 0
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local version = math.max(now, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
local text = string.format('%.0f', version)
redis.call('SET', KEYS[2], text)
redis.call('HSET', KEYS[1], 'version', text, 'record', ARGV[2])
if ARGV[3] == '0' then
  redis.call('PERSIST', KEYS[1])
else
  redis.call('PEXPIREAT', KEYS[1], ARGV[3])
end
if current ~= '' then -- nobody waits for a key that is free
  redis.call('PUBLISH', ARGV[4], ARGV[5])
end
return 1
