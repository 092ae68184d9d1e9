//! Flips every bit of small stores, one at a time: nothing but what was written may be served.
//!
//! For readers every bit is flipped. Only long runs of zeros (unused journal space, the rest of a
//! slot's sector) are flipped bit by bit in one store and by `padding_stride` in the others. For
//! writers, who also repair what they find, it is each seventh bit. -Dscale=2 and more flips all.

const std = @import("std");
const options = @import("test_options");
const bench_zig = @import("bench.zig");
const specimen_zig = @import("specimen.zig");
const files = @import("zrecord").files;

const Bench = bench_zig.Bench;
const Specimen = specimen_zig.Specimen;
const Way = specimen_zig.Way;

const padding_stride = 97;
const ways = [_]Way{
    .{ .mode = .read, .mapping = true },
    .{ .mode = .write, .mapping = false },
};

const writer_stride = 7;

const Job = struct { specimen: Specimen, file: specimen_zig.File, way: Way, stride: usize, padding_stride: usize };

const Worker = struct {
    jobs: []const Job,
    next: *std.atomic.Value(usize),
    counts: bench_zig.Counts = .{},

    pub fn run(worker: *Worker) void {
        while (worker.counts.failed < 10) {
            const number = worker.next.fetchAdd(1, .monotonic);
            if (number >= worker.jobs.len) return;
            worker.flipFile(worker.jobs[number]);
        }
    }

    fn flipFile(worker: *Worker, job: Job) void {
        var bench: Bench = undefined;
        bench.init(job.specimen);
        defer bench.deinit();
        const bytes = job.file.bytes;
        var bit: usize = 0;
        while (bit < bytes.len * 8) : (bit += if (isPadding(bytes, bit / 8)) job.padding_stride else job.stride) {
            const mask = @as(u8, 1) << @intCast(bit % 8);
            bench.disk.content(job.file.name).?[bit / 8] ^= mask;
            const examined = bench.examine(job.way);
            worker.counts.by_outcome.getPtr(examined.outcome).* += 1;
            switch (examined.outcome) {
                .same, .refused, .records => {},
                .table, .shorter, .wrong => {
                    var text: [64]u8 = undefined;
                    var name: files.Name.Buffer = undefined;
                    const damage = std.fmt.bufPrint(&text, "{s} bit {d}", .{ job.file.name.text(&name), bit }) catch unreachable;
                    bench_zig.report(job.specimen, damage, job.way, examined);
                    worker.counts.failed += 1;
                    if (worker.counts.failed == 10) return;
                },
            }
            if (bench.changed) bench.restore() else bench.disk.content(job.file.name).?[bit / 8] ^= mask;
        }
    }
};

/// In the middle of 64 zeros.
fn isPadding(bytes: []const u8, position: usize) bool {
    return std.mem.allEqual(u8, bytes[position -| 32..@min(position + 32, bytes.len)], 0);
}

test "undamaged stores read as they were written" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    for (try specimen_zig.buildAll(arena.allocator(), 2)) |specimen| {
        for (ways) |way| {
            var bench: Bench = undefined;
            bench.init(specimen);
            defer bench.deinit();
            const examined = bench.examine(way);
            if (examined.outcome == .same) continue;
            bench_zig.report(specimen, "nothing", way, examined);
            return error.Unequal;
        }
    }
}

test "every flipped bit is noticed or changes nothing" {
    var arena: std.heap.ArenaAllocator = .init(std.testing.allocator);
    defer arena.deinit();
    var jobs: std.ArrayList(Job) = .empty;
    for (try specimen_zig.buildAll(arena.allocator(), 1)) |specimen| {
        for (ways) |way| {
            const stride: usize = if (way.mode == .write and options.scale <= 1) writer_stride else 1;
            const bit_by_bit = options.scale > 1 or
                (specimen.kind == .ragged and specimen.codec == .zstd and specimen.moment == .live and way.mode == .read);
            for (specimen.files) |file| try jobs.append(arena.allocator(), .{
                .specimen = specimen,
                .file = file,
                .way = way,
                .stride = stride,
                .padding_stride = if (bit_by_bit) stride else padding_stride * stride,
            });
        }
    }
    var next: std.atomic.Value(usize) = .init(0);
    var workers: [2]Worker = @splat(.{ .jobs = jobs.items, .next = &next });
    const counts = try bench_zig.runTwo(Worker, &workers);
    counts.print("flipped bits");
    if (counts.failed > 0) return error.Silent;
}
