//! One store, many threads, real files, built with the thread sanitizer: an appender that syncs,
//! deletes and compacts, four gatherers, a watcher, a reader that refreshes, and a close in the middle.
//!
//!     zig build race [-Dscale=N]

const std = @import("std");
const options = @import("test_options");
const zrecord = @import("zrecord");
const model = @import("model.zig");

const Fault = zrecord.status.Fault;
const Files = zrecord.files.Files;
const Id = model.Id;
const format = zrecord.format;
const gpa = std.heap.c_allocator;

const limits: zrecord.limits.Limits = .{
    .segment_bits = 9,
    .chunk_size_max = 8 << 10,
    .append_block_size = 256,
    .open_files_max = 3,
};
const gatherer_count = 4;
const batch = 24;
/// The store is cut back to half of this by deletes.
const length_max = 3000;

fn Race(comptime kind: format.Kind) type {
    return struct {
        store: *Store,
        deletes: bool,
        gathers: std.atomic.Value(u64) = .init(0),
        records: std.atomic.Value(u64) = .init(0),
        wrong: std.atomic.Value(u64) = .init(0),

        const Self = @This();
        const Store = zrecord.store.Store(Files, limits);
        const width = if (kind == .dense) model.dense_width else model.item_size;

        const Handle = struct {
            medium: Files,
            store: *Store,

            fn open(handle: *Handle, path: [*:0]const u8, given: zrecord.store.Options) !void {
                var fault: Fault = .{};
                handle.medium = try .openDirectory(path);
                errdefer handle.medium.closeDirectory();
                handle.store = try Store.open(gpa, &handle.medium, given, &fault);
            }

            fn free(handle: *Handle) void {
                _ = handle.store.free();
                handle.medium.closeDirectory();
            }
        };

        /// Runs until `gathers_wanted` gathers are done, then closes under all threads.
        fn run(path: [:0]const u8, codec: format.Codec, deletes: bool, gathers_wanted: u64) !u64 {
            var writer: Handle = undefined;
            try writer.open(path, .{
                .mode = .create,
                .kind = kind,
                .codec = codec,
                .checksums = if (deletes) .always else .once,
                .record_width = width,
                .identity = "identity",
            });
            defer writer.free();
            var race: Self = .{ .store = writer.store, .deletes = deletes };
            var reader: Handle = undefined;
            if (!deletes) try reader.open(path, .{ .mode = .read });
            defer if (!deletes) reader.free();

            var threads: [gatherer_count + 3]std.Thread = undefined;
            for (threads[0..gatherer_count], 0..) |*thread, seed| thread.* = try .spawn(.{}, gatherLoop, .{ &race, race.store, seed });
            threads[gatherer_count] = try .spawn(.{}, appendLoop, .{&race});
            threads[gatherer_count + 1] = try .spawn(.{}, watchLoop, .{&race});
            threads[gatherer_count + 2] = if (deletes)
                try .spawn(.{}, watchLoop, .{&race})
            else
                try .spawn(.{}, refreshLoop, .{ &race, reader.store });

            while (race.gathers.load(.monotonic) < gathers_wanted and race.wrong.load(.monotonic) == 0) writer.medium.sleep(5);
            var fault: Fault = .{};
            const closed = writer.store.close(&fault);
            if (!deletes) try reader.store.close(&fault);
            for (threads) |thread| thread.join();
            try closed;
            try std.testing.expectEqual(0, race.wrong.load(.monotonic));

            // What was closed is whole.
            var again: Handle = undefined;
            try again.open(path, .{ .mode = .read });
            defer again.free();
            const report = try again.store.verify(Observer{}, &fault);
            try std.testing.expectEqual(0, report.damaged);
            try std.testing.expect(!report.table_damaged and report.records > 0);
            return race.records.load(.monotonic);
        }

        /// True: go on. The store may be closed at any time, by another thread.
        fn goesOn(race: *Self, result: anyerror!void, allowed: ?anyerror) bool {
            if (result) |_| return true else |err| {
                if (err == error.Closed) return false;
                if (allowed == null or err != allowed.?) {
                    std.debug.print("a call failed: {any}\n", .{err});
                    _ = race.wrong.fetchAdd(1, .monotonic);
                    return false;
                }
                return true;
            }
        }

        fn gatherLoop(race: *Self, store: *Store, seed: u64) void {
            var prng: std.Random.DefaultPrng = .init(seed);
            // A delete may come between looking at the length and reading.
            while (race.goesOn(race.gatherOnce(store, prng.random()), if (race.deletes) error.IndexOutOfRange else null)) {}
        }

        fn gatherOnce(race: *Self, store: *Store, random: std.Random) !void {
            const length = try store.length();
            if (length == 0) return;
            var indices: [batch]u64 = undefined;
            for (&indices) |*index| index.* = random.uintLessThan(u64, length);
            var fault: Fault = .{};
            var bytes: [batch * model.record_size_max]u8 = undefined;
            if (kind == .dense) {
                const target = bytes[0 .. batch * width];
                const engine = try store.enterKind(kind, &fault);
                defer engine.leave();
                try zrecord.dense.gatherInto(engine, @as([]const u64, &indices), target, &fault);
                for (0..batch) |ordinal| race.check(target[ordinal * width ..][0..width]);
            } else {
                const engine = try store.enterKind(kind, &fault);
                defer engine.leave();
                var offsets: [batch + 1]i64 = undefined;
                var shapes: [batch]u64 = undefined;
                var dims: [batch * model.rank_max]u64 = undefined;
                var dim_count: u64 = 0;
                try zrecord.ragged.plan(engine, @as([]const u64, &indices), &offsets, &shapes, &dim_count, &fault);
                const size: usize = @intCast(offsets[batch] * width);
                try zrecord.ragged.gatherInto(engine, @as([]const u64, &indices), &offsets, &shapes, bytes[0..size], dims[0..@intCast(dim_count)], &fault);
                for (0..batch) |ordinal| race.check(bytes[@intCast(offsets[ordinal] * width)..@intCast(offsets[ordinal + 1] * width)]);
            }
            _ = race.gathers.fetchAdd(1, .monotonic);
            _ = race.records.fetchAdd(batch, .monotonic);
        }

        fn check(race: *Self, bytes: []const u8) void {
            if (model.identify(kind, bytes) == null) _ = race.wrong.fetchAdd(1, .monotonic);
        }

        fn appendLoop(race: *Self) void {
            var next: Id = 0;
            while (race.goesOn(race.appendOnce(&next), null)) {}
        }

        fn appendOnce(race: *Self, next: *Id) !void {
            const count = 1 + next.* % 40;
            var fault: Fault = .{};
            try race.append(next.*, count, &fault);
            next.* += count;
            if (next.* % 5 == 0) try race.store.sync(&fault);
            if (try race.store.length() < length_max) return;
            if (!race.deletes) {
                // Gathers of the whole go on; one more append in a while.
                std.Thread.yield() catch {};
                return;
            }
            var doomed: [length_max / 2]u64 = undefined;
            for (&doomed, 0..) |*index, position| index.* = 2 * position;
            _ = try race.store.delete(@as([]const u64, &doomed), &fault);
            try race.store.compact(Observer{}, &fault);
        }

        fn append(race: *Self, first: Id, count: Id, fault: *Fault) !void {
            var part: model.Part(kind, 40) = .{};
            for (0..count) |ordinal| part.add(first + @as(Id, @intCast(ordinal)));
            const engine = try race.store.ofKind(kind, fault);
            try engine.appendBegin();
            errdefer engine.appendAbort(fault) catch {};
            try part.append(engine, fault);
            _ = try engine.appendCommit(fault);
        }

        fn watchLoop(race: *Self) void {
            while (race.goesOn(race.watchOnce(), null)) {}
        }

        fn watchOnce(race: *Self) !void {
            var fault: Fault = .{};
            const stats = try race.store.stats();
            try race.store.willNeed(@as([]const u64, &.{ 0, 5, 1000 }));
            try race.store.sync(&fault);
            if (stats.records % 7 != 0) return;
            const report = try race.store.verify(Observer{}, &fault);
            if (report.damaged > 0) _ = race.wrong.fetchAdd(1, .monotonic);
        }

        fn refreshLoop(race: *Self, reader: *Store) void {
            var seen: u64 = 0;
            var prng: std.Random.DefaultPrng = .init(7);
            while (race.goesOn(race.refreshOnce(reader, &seen, prng.random()), null)) {}
        }

        fn refreshOnce(race: *Self, reader: *Store, seen: *u64, random: std.Random) !void {
            var fault: Fault = .{};
            const length = try reader.refresh(&fault);
            if (length < seen.*) _ = race.wrong.fetchAdd(1, .monotonic);
            seen.* = length;
            try race.gatherOnce(reader, random);
        }
    };
}

const Observer = struct {
    pub fn step(_: Observer, _: u64, _: u64) bool {
        return true;
    }

    pub fn found(_: Observer, _: zrecord.status.Error, _: Fault) bool {
        return true;
    }
};

fn raceAll(comptime kind: format.Kind, codec: format.Codec) !void {
    zrecord.parallel.setThreadCount(3);
    var tmp = std.testing.tmpDir(.{});
    defer tmp.cleanup();
    var buffer: [96]u8 = undefined;
    for ([_]bool{ false, true }) |deletes| {
        const path = try std.fmt.bufPrintZ(&buffer, ".zig-cache/tmp/{s}/{s}", .{ tmp.sub_path, if (deletes) "deletes" else "appends" });
        try Files.makeDirectory(path);
        const gathers = 250_000 * @as(u64, @max(options.scale, 1));
        const records = try Race(kind).run(path, codec, deletes, gathers);
        std.debug.print("{t} {t}{s}: {d} gathers, {d} records\n", .{ kind, codec, if (deletes) ", deletes" else "", gathers, records });
    }
}

test "dense, raw" {
    try raceAll(.dense, .raw);
}

test "ragged, zstd" {
    try raceAll(.ragged, .zstd);
}
