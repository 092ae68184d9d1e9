//! Flips every bit of small stores, one at a time: nothing but what was written may be served.
//!
//!     zig build flips [-Dscale=N]
//!
//! Long runs of zeros (unused journal space, the rest of a slot's sector) are flipped bit by bit in
//! `whole_padding` of the stores and at every `padding_stride`th bit in the others; -Dscale=2 and
//! more flips every bit of all stores.

const std = @import("std");
const builtin = @import("builtin");
const options = @import("test_options");
const zrecord = @import("zrecord");
const sim = @import("sim_files.zig");
const specimen_zig = @import("specimen.zig");

const Disk = sim.Disk;
const Examination = specimen_zig.Examination;
const Outcome = specimen_zig.Outcome;
const Specimen = specimen_zig.Specimen;
const Way = specimen_zig.Way;
const print = std.debug.print;
const gpa = std.heap.smp_allocator;

const padding_stride = 97;
const ways = [_]Way{
    .{ .mode = .read, .mapping = true },
    .{ .mode = .write, .mapping = false },
};

const Counts = std.enums.EnumArray(Outcome, u64);

/// A disk with one store on it, which is put back after each examination.
const Bench = struct {
    specimen: Specimen,
    disk: Disk,
    changed: bool = false,

    fn init(bench: *Bench, specimen: Specimen) void {
        bench.* = .{ .specimen = specimen, .disk = .init(gpa) };
        bench.plant();
    }

    fn plant(bench: *Bench) void {
        bench.disk.tracking = false;
        bench.specimen.plant(&bench.disk);
        bench.disk.hook = .{ .context = bench, .call = noteChange };
        bench.changed = false;
    }

    fn noteChange(context: *anyopaque, _: *Disk, event: sim.Event) void {
        const bench: *Bench = @ptrCast(@alignCast(context));
        switch (event.call) {
            .write, .truncate, .create, .rename, .unlink => bench.changed = true,
            else => {},
        }
    }

    fn restore(bench: *Bench) void {
        if (!bench.changed) return;
        bench.disk.deinit();
        bench.disk = .init(gpa);
        bench.plant();
    }

    fn examine(bench: *Bench, way: Way) Examination {
        const first = bench.examineOnce(way);
        if (!bench.changed or first.outcome != .same) return first;
        // What a writer made of it has to last.
        const second = bench.examineOnce(.{});
        if (second.outcome == .refused) return .{ .outcome = .wrong, .text = "whole, then refused", .err = second.err, .fault = second.fault };
        return second;
    }

    fn examineOnce(bench: *Bench, way: Way) Examination {
        return switch (bench.specimen.kind) {
            inline else => |kind| specimen_zig.examine(kind, gpa, &bench.disk, way, bench.specimen.ids, 0),
        };
    }
};

const Job = struct { specimen: Specimen, file: specimen_zig.File, way: Way, whole_padding: bool };

const Worker = struct {
    jobs: []const Job,
    next: *std.atomic.Value(usize),
    counts: Counts = .initFill(0),
    wrong: u64 = 0,

    fn run(worker: *Worker) void {
        while (true) {
            const number = worker.next.fetchAdd(1, .monotonic);
            if (number >= worker.jobs.len or worker.wrong >= 10) return;
            worker.flipFile(worker.jobs[number]);
        }
    }

    fn flipFile(worker: *Worker, job: Job) void {
        var bench: Bench = undefined;
        bench.init(job.specimen);
        defer bench.disk.deinit();
        const bytes = job.file.bytes;
        var bit: usize = 0;
        while (bit < bytes.len * 8) : (bit += if (job.whole_padding or !isPadding(bytes, bit / 8)) 1 else padding_stride) {
            const mask = @as(u8, 1) << @intCast(bit % 8);
            bench.disk.content(job.file.name).?[bit / 8] ^= mask;
            const examined = bench.examine(job.way);
            worker.counts.getPtr(examined.outcome).* += 1;
            const failed = examined.outcome == .wrong or examined.outcome == .table;
            if (failed) {
                worker.wrong += 1;
                report(job, bit, examined);
                if (worker.wrong >= 10) return;
            }
            if (bench.changed) bench.restore() else bench.disk.content(job.file.name).?[bit / 8] ^= mask;
        }
    }
};

/// In the middle of 64 zeros.
fn isPadding(bytes: []const u8, position: usize) bool {
    const from = position -| 32;
    const to = @min(position + 32, bytes.len);
    return std.mem.allEqual(u8, bytes[from..to], 0);
}

fn report(job: Job, bit: usize, examined: Examination) void {
    var store_text: [64]u8 = undefined;
    var name: zrecord.files.Name.Buffer = undefined;
    print("SILENT: {s}, {s} bit {d}, {t}: {t} {s} {any} file {any} record {d} expected {x} found {x}\n", .{
        job.specimen.describe(&store_text), job.file.name.text(&name), bit,                    job.way.mode,
        examined.outcome,                   examined.text,             examined.err,           examined.fault.file,
        examined.fault.record,              examined.fault.expected,   examined.fault.found,
    });
}

test "every flipped bit is noticed or changes nothing" {
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    const specimens = try specimen_zig.buildAll(arena.allocator(), 1);
    var jobs: std.ArrayList(Job) = .empty;
    for (specimens) |specimen| {
        for (ways) |way| {
            const whole = specimen.codec == .raw and specimen.kind == .dense or specimen.codec == .zstd and specimen.kind == .ragged;
            for (specimen.files) |file| try jobs.append(arena.allocator(), .{
                .specimen = specimen,
                .file = file,
                .way = way,
                .whole_padding = options.scale > 1 or (whole and specimen.moment == .live and way.mode == .read),
            });
        }
    }
    var next: std.atomic.Value(usize) = .init(0);
    var workers: [2]Worker = undefined;
    var threads: [2]std.Thread = undefined;
    for (&workers, &threads) |*worker, *thread| {
        worker.* = .{ .jobs = jobs.items, .next = &next };
        thread.* = try .spawn(.{}, Worker.run, .{worker});
    }
    var total: u64 = 0;
    var wrong: u64 = 0;
    var counts: Counts = .initFill(0);
    for (&workers, threads) |*worker, thread| {
        thread.join();
        wrong += worker.wrong;
        for (std.enums.values(Outcome)) |outcome| {
            counts.getPtr(outcome).* += worker.counts.get(outcome);
            total += worker.counts.get(outcome);
        }
    }
    print("flips: {d} in {d} stores: {d} harmless, {d} refused, {d} records named; {d} silent\n", .{
        total, specimens.len, counts.get(.same), counts.get(.refused), counts.get(.records), wrong,
    });
    if (wrong > 0) return error.Silent;
}

test "undamaged stores read as they were written" {
    var arena: std.heap.ArenaAllocator = .init(gpa);
    defer arena.deinit();
    for (try specimen_zig.buildAll(arena.allocator(), 2)) |specimen| {
        for (ways) |way| {
            var bench: Bench = undefined;
            bench.init(specimen);
            defer bench.disk.deinit();
            const examined = bench.examine(way);
            if (examined.outcome != .same) {
                report(.{ .specimen = specimen, .file = specimen.files[0], .way = way, .whole_padding = false }, 0, examined);
                return error.Unequal;
            }
        }
    }
}
