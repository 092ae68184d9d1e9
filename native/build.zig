//! Builds libzrecord and libzsampler, their tests, and the libraries of every wheel.
//! `zig build --help` lists the steps; the first lines of `build` declare them all.
const std = @import("std");

/// One entry a wheel platform: its tag, and the triple that it is compiled for. The triple names
/// the oldest system that the wheel loads on; the CPU is always the architecture's baseline.
/// The packages' build hooks read the tags from here.
const wheels = [_]struct { tag: []const u8, triple: []const u8 }{
    .{ .tag = "manylinux_2_17_x86_64", .triple = "x86_64-linux-gnu.2.17" },
    .{ .tag = "manylinux_2_17_aarch64", .triple = "aarch64-linux-gnu.2.17" },
    .{ .tag = "musllinux_1_2_x86_64", .triple = "x86_64-linux-musl" },
    .{ .tag = "musllinux_1_2_aarch64", .triple = "aarch64-linux-musl" },
    .{ .tag = "macosx_11_0_x86_64", .triple = "x86_64-macos.11.0" },
    .{ .tag = "macosx_11_0_arm64", .triple = "aarch64-macos.11.0" },
    .{ .tag = "win_amd64", .triple = "x86_64-windows-gnu" },
    .{ .tag = "win_arm64", .triple = "aarch64-windows-gnu" },
};

/// Version of the C interface of both libraries. The major number is the SONAME's.
const abi_version: std.SemanticVersion = .{ .major = 1, .minor = 0, .patch = 0 };

pub fn build(b: *std.Build) void {
    const zrecord_step = b.step("zrecord", "Build and install libzrecord alone");
    const zsampler_step = b.step("zsampler", "Build and install libzsampler alone");
    const test_step = b.step("test", "Run each kind of native test once, in the mode that finds most in minutes");
    const test_zrecord_step = b.step("test-zrecord", "Run those of libzrecord");
    const test_zsampler_step = b.step("test-zsampler", "Run those of libzsampler");
    const stress_step = b.step("stress", "Run the tests in the other mode; kill, fuzz and race the store");
    const crash_step = b.step("crash", "Crash the store at every operation; -Dscale lengthens it");
    const fuzz_step = b.step("fuzz", "Fuzz the store and its formats; -Dscale lengthens it");
    const race_step = b.step("race", "Race the threads of a store under the thread sanitizer; -Dscale lengthens it");
    const check_step = b.step("check-all", "Analyse both libraries for all eight targets");
    const dist_step = b.step("dist", "Install both libraries of all eight targets, by wheel tag");
    const fmt_step = b.step("fmt", "Check the formatting of every Zig file");

    // Whoever builds without naming a target gets this system, but never this machine's CPU:
    // a library must not depend on where it was built.
    const named_target = b.standardTargetOptions(.{ .default_target = .{ .cpu_model = .baseline } });
    const wheel = b.option([]const u8, "wheel", "Build for the platform of this wheel tag");
    const target = if (wheel) |tag| wheelTarget(b, tag) else named_target;
    const optimize = b.option(
        std.builtin.OptimizeMode,
        "optimize",
        "Mode of the installed libraries (default: ReleaseFast)",
    ) orelse .ReleaseFast;
    const filters = b.option([]const []const u8, "test-filter", "Run tests whose names contain this") orelse &.{};
    const scale = b.option(u32, "scale", "Factor on the length of the crash and fuzz runs (default: 1)") orelse 1;
    const seed = b.option(u64, "seed", "First seed of the crash and fuzz runs (default: 1)") orelse 1;
    const test_options = b.addOptions();
    test_options.addOption(u32, "scale", scale);
    test_options.addOption(u64, "seed", seed);

    const zstd = addZstd(b, target);
    zrecord_step.dependOn(addInstall(b, library(b, "zrecord", zrecordModule(b, target, optimize, zstd)), "lib"));
    zsampler_step.dependOn(addInstall(b, library(b, "zsampler", zsamplerModule(b, target, optimize)), "lib"));
    b.getInstallStep().dependOn(zrecord_step);
    b.getInstallStep().dependOn(zsampler_step);

    for ([_]std.builtin.OptimizeMode{ .Debug, .ReleaseFast }) |mode| {
        const tests: Tests = .{ .b = b, .target = target, .mode = mode, .zstd = zstd, .filters = filters, .options = test_options };
        // Safety checks find most in the small tests. The searches need speed: a million crash states
        // in ReleaseFast, a part of them in Debug.
        const debug = mode == .Debug;
        const small_step = if (debug) test_zrecord_step else stress_step;
        const search_step = if (debug) stress_step else test_zrecord_step;
        small_step.dependOn(tests.run("zrecord", zrecordModule(b, target, mode, zstd)));
        small_step.dependOn(tests.runFile("golden_test"));
        // It compares declarations, which are the same in every mode.
        if (debug) small_step.dependOn(tests.runFile("header_test"));
        const sampler_step = if (debug) test_zsampler_step else stress_step;
        sampler_step.dependOn(tests.run("zsampler", zsamplerModule(b, target, mode)));
        search_step.dependOn(tests.runFile("fault_test"));
        const crash_test = tests.runFile("crash_test");
        search_step.dependOn(crash_test);
        crash_step.dependOn(crash_test);
    }
    // These run optimised and with every safety check.
    const long: Tests = .{ .b = b, .target = target, .mode = .ReleaseSafe, .zstd = zstd, .filters = filters, .options = test_options };
    // Windows has no fork, and no signal to be killed by.
    if (target.result.os.tag != .windows) {
        const kill_test = long.runFile("kill_test");
        crash_step.dependOn(kill_test);
        stress_step.dependOn(kill_test);
    }
    for ([_][]const u8{ "store_fuzz", "damage_test" }) |name| fuzz_step.dependOn(long.runFile(name));
    var sanitized = long;
    sanitized.sanitize_thread = true;
    // The sanitizer knows this platform well; the code is the same on the others.
    const can_sanitize = target.result.os.tag == .linux and target.result.abi.isGnu();
    if (can_sanitize) race_step.dependOn(sanitized.runFile("race_test"));
    stress_step.dependOn(fuzz_step);
    stress_step.dependOn(race_step);
    test_step.dependOn(test_zrecord_step);
    test_step.dependOn(test_zsampler_step);

    for (wheels) |platform| {
        const dist_target = wheelTarget(b, platform.tag);
        // Nobody asks for the files of these two, so they are analysed and not linked: fast.
        check_step.dependOn(&library(b, "zrecord", zrecordModule(b, dist_target, .Debug, null)).step);
        check_step.dependOn(&library(b, "zsampler", zsamplerModule(b, dist_target, .Debug)).step);
        const folder = b.fmt("dist/{s}", .{platform.tag});
        const dist_zstd = addZstd(b, dist_target);
        dist_step.dependOn(addInstall(b, library(b, "zrecord", zrecordModule(b, dist_target, .ReleaseFast, dist_zstd)), folder));
        dist_step.dependOn(addInstall(b, library(b, "zsampler", zsamplerModule(b, dist_target, .ReleaseFast)), folder));
    }

    fmt_step.dependOn(&b.addFmt(.{ .paths = &.{ "build.zig", "src", "test" }, .check = true }).step);
}

fn wheelTarget(b: *std.Build, tag: []const u8) std.Build.ResolvedTarget {
    for (wheels) |platform| {
        if (!std.mem.eql(u8, platform.tag, tag)) continue;
        const query = std.Target.Query.parse(.{ .arch_os_abi = platform.triple }) catch unreachable;
        return b.resolveTargetQuery(query);
    }
    std.process.fatal("-Dwheel={s}: expected one of the tags in build.zig", .{tag});
}

fn zrecordModule(
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    optimize: std.builtin.OptimizeMode,
    zstd: ?*std.Build.Step.Compile,
) *std.Build.Module {
    const module = sourceModule(b, "src/zrecord/c_api.zig", target, optimize);
    if (zstd) |compile| module.linkLibrary(compile);
    return module;
}

fn zsamplerModule(b: *std.Build, target: std.Build.ResolvedTarget, optimize: std.builtin.OptimizeMode) *std.Build.Module {
    const module = sourceModule(b, "src/zsampler/c_api.zig", target, optimize);
    if (target.result.cpu.arch == .x86_64) {
        // The same kernels once more for each of these CPUs; the library chooses when it runs.
        for ([_]*const std.Target.Cpu.Model{ &std.Target.x86.cpu.x86_64_v3, &std.Target.x86.cpu.x86_64_v4 }) |model| {
            var query = target.query;
            query.cpu_model = .{ .explicit = model };
            // Or the vectors of AVX-512 would be split in two.
            query.cpu_features_sub.addFeature(@intFromEnum(std.Target.x86.Feature.prefer_256_bit));
            module.addObject(b.addObject(.{
                .name = b.fmt("kernel_{s}", .{model.name}),
                .root_module = sourceModule(b, "src/zsampler/kernel_wide.zig", b.resolveTargetQuery(query), optimize),
                .use_llvm = true,
            }));
        }
    }
    return module;
}

fn sourceModule(
    b: *std.Build,
    root: []const u8,
    target: std.Build.ResolvedTarget,
    optimize: std.builtin.OptimizeMode,
) *std.Build.Module {
    return b.createModule(.{
        .root_source_file = b.path(root),
        .target = target,
        .optimize = optimize,
        .link_libc = true,
        .pic = true,
        .strip = if (optimize == .Debug) null else true,
    });
}

fn library(b: *std.Build, name: []const u8, module: *std.Build.Module) *std.Build.Step.Compile {
    const compile = b.addLibrary(.{
        .name = name,
        .linkage = .dynamic,
        .root_module = module,
        .version = abi_version,
        .use_llvm = true,
    });
    // zrecord copies and decodes with libc's memcpy, chosen for the CPU it runs on, not with the plain
    // one that the compiler brings along. Windows links nothing without the compiler's.
    if (std.mem.eql(u8, name, "zrecord") and compile.rootModuleTarget().os.tag != .windows) {
        compile.bundle_compiler_rt = false;
    }
    if (compile.rootModuleTarget().os.tag == .macos) {
        compile.install_name = b.fmt("@rpath/{s}", .{fileName(b, compile)});
    }
    return compile;
}

/// The name that users load the library by. It is the only one installed: a wheel holds no links.
fn fileName(b: *std.Build, compile: *std.Build.Step.Compile) []const u8 {
    return switch (compile.rootModuleTarget().os.tag) {
        .windows => b.fmt("{s}.dll", .{compile.name}),
        .macos => b.fmt("lib{s}.{d}.dylib", .{ compile.name, abi_version.major }),
        else => b.fmt("lib{s}.so.{d}", .{ compile.name, abi_version.major }),
    };
}

fn addInstall(b: *std.Build, compile: *std.Build.Step.Compile, folder: []const u8) *std.Build.Step {
    const install = b.addInstallFileWithDir(compile.getEmittedBin(), .{ .custom = folder }, fileName(b, compile));
    return &install.step;
}

/// The tests of one mode.
const Tests = struct {
    b: *std.Build,
    target: std.Build.ResolvedTarget,
    mode: std.builtin.OptimizeMode,
    zstd: *std.Build.Step.Compile,
    filters: []const []const u8,
    options: *std.Build.Step.Options,
    sanitize_thread: bool = false,

    fn run(tests: Tests, name: []const u8, module: *std.Build.Module) *std.Build.Step {
        const compile = tests.b.addTest(.{
            .name = tests.b.fmt("{s}-{t}", .{ name, tests.mode }),
            .root_module = module,
            .filters = tests.filters,
        });
        return &tests.b.addRunArtifact(compile).step;
    }

    /// A file of test/: it imports the engine as `zrecord`, embeds the headers by their names and
    /// reads `test_options`.
    fn runFile(tests: Tests, name: []const u8) *std.Build.Step {
        const b = tests.b;
        const module = sourceModule(b, b.fmt("test/{s}.zig", .{name}), tests.target, tests.mode);
        const engine = zrecordModule(b, tests.target, tests.mode, tests.zstd);
        module.addImport("zrecord", engine);
        if (tests.sanitize_thread) for ([_]*std.Build.Module{ module, engine }) |part| {
            part.sanitize_thread = true;
        };
        module.addOptions("test_options", tests.options);
        for ([_][]const u8{ "zrecord.h", "zsampler.h" }) |header| {
            module.addAnonymousImport(header, .{ .root_source_file = b.path(b.fmt("include/{s}", .{header})) });
        }
        // The header test compares these as text.
        for ([_][2][]const u8{
            .{ "zrecord_c_api", "src/zrecord/c_api.zig" },
            .{ "zsampler_c_api", "src/zsampler/c_api.zig" },
            .{ "zrecord_format", "src/zrecord/format.zig" },
        }) |source| module.addAnonymousImport(source[0], .{ .root_source_file = b.path(source[1]) });
        return tests.run(name, module);
    }
};

/// zstd as a private static library: none of its symbols leaves the library that links it.
/// `fetch_zstd.py` brings the source; ZRECORD_ZSTD_SOURCE names another folder of the same shape.
fn addZstd(b: *std.Build, target: std.Build.ResolvedTarget) *std.Build.Step.Compile {
    const source: std.Build.LazyPath = if (b.graph.environ_map.get("ZRECORD_ZSTD_SOURCE")) |folder|
        .{ .cwd_relative = folder }
    else
        b.path("zstd");
    const module = b.createModule(.{
        .target = target,
        .optimize = .ReleaseFast,
        .link_libc = true,
        .strip = true,
        .pic = true,
        .sanitize_c = .off,
    });
    for ([_][]const u8{ "ZSTDLIB_VISIBLE", "ZSTDLIB_HIDDEN", "ZDICTLIB_VISIBLE", "ZSTDERRORLIB_VISIBLE" }) |name| {
        module.addCMacro(name, "");
    }
    module.addCMacro("ZSTD_TRACE", "0");
    const with_assembly = target.result.cpu.arch == .x86_64 and target.result.os.tag != .windows;
    if (with_assembly) {
        module.addAssemblyFile(source.path(b, "lib/decompress/huf_decompress_amd64.S"));
    } else {
        module.addCMacro("ZSTD_DISABLE_ASM", "1");
    }
    module.addCSourceFiles(.{
        .root = source.path(b, "lib"),
        .files = &zstd_files,
        // Sections let the linker drop what nobody calls: musl before 1.2.3 has no qsort_r.
        .flags = if (target.result.abi.isMusl())
            &.{ "-std=c11", "-fvisibility=hidden", "-ffunction-sections" }
        else
            &.{ "-std=c11", "-fvisibility=hidden" },
    });
    return b.addLibrary(.{ .name = "zstd_private", .linkage = .static, .root_module = module });
}

const zstd_files = [_][]const u8{
    "common/debug.c",
    "common/entropy_common.c",
    "common/error_private.c",
    "common/fse_decompress.c",
    "common/pool.c",
    "common/threading.c",
    "common/xxhash.c",
    "common/zstd_common.c",
    "compress/fse_compress.c",
    "compress/hist.c",
    "compress/huf_compress.c",
    "compress/zstd_compress.c",
    "compress/zstd_compress_literals.c",
    "compress/zstd_compress_sequences.c",
    "compress/zstd_compress_superblock.c",
    "compress/zstd_double_fast.c",
    "compress/zstd_fast.c",
    "compress/zstd_lazy.c",
    "compress/zstd_ldm.c",
    "compress/zstd_opt.c",
    "compress/zstd_preSplit.c",
    "compress/zstdmt_compress.c",
    "decompress/huf_decompress.c",
    "decompress/zstd_ddict.c",
    "decompress/zstd_decompress.c",
    "decompress/zstd_decompress_block.c",
    "dictBuilder/cover.c",
    "dictBuilder/divsufsort.c",
    "dictBuilder/fastcover.c",
    "dictBuilder/zdict.c",
};
