-- A small shop: orders inserted in random key order, an index, and questions that jump through
-- both. The tables take some 35 MiB, six times what the TLB of the modelled CPU reaches with base
-- pages.
.bail on
pragma cache_size = -400000;
pragma temp_store = memory;

create table purchase (id integer primary key, customer integer, cents integer, receipt blob);

-- Multiplying by an odd number modulo a power of two visits every key once, in no order that a
-- page could like.
with recursive n(i) as (select 1 union all select i + 1 from n where i < 12000)
insert into purchase
select i * 387631 % 1048576, i * 48271 % 2000, i * 69621 % 10000, zeroblob(2400) from n;

create index purchase_customer on purchase (customer);

select customer, count(*), sum(cents) / 100 from purchase indexed by purchase_customer
group by customer order by 3 desc limit 3;

with recursive n(i) as (select 1 union all select i + 1 from n where i < 12000)
select count(*), sum(cents) from n join purchase on purchase.id = n.i * 387631 % 1048576;
