-- Draws the next number of the counter, which is never behind the clock: numbers that Redis loses
-- in a crash are not drawn again.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local next = math.max(now, tonumber(redis.call('GET', KEYS[1]) or '0') + 1)
local text = string.format('%.0f', next) -- the conversion of Lua has 14 digits
redis.call('SET', KEYS[1], text)
return text
