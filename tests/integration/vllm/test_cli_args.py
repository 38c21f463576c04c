"""What we render, read by the parser of the installed vLLM."""

import pytest

from art.vllm.cli_args import option_strings, render_cli_args

pytestmark = pytest.mark.integration


def test_vllms_own_parser_reads_what_is_rendered(caplog):
    cli_args = pytest.importorskip("vllm.entrypoints.openai.cli_args")
    argparse_utils = pytest.importorskip("vllm.utils.argparse_utils")
    parser = cli_args.make_arg_parser(argparse_utils.FlexibleArgumentParser())
    modules = [{"name": "m@1", "path": "/p,q"}, {"name": "m@2", "path": "/r"}]
    rendered = render_cli_args(
        {
            "model": "/models/tiny",
            "served_model_name": ["base", "other"],
            "dtype": "torch.float32",
            "max_lora_rank": 32,
            "max_loras": 2,
            "max_cpu_loras": 8,
            "enable_lora": True,
            "enable_prefix_caching": False,
            "enforce_eager": True,
            "kv_cache_memory_bytes": 1 << 30,
            "distributed_executor_backend": "vllm.v1.executor.uniproc_executor.UniProcExecutor",
            "limit_mm_per_prompt": {"image": 2},
            "hf_overrides": {"rope_theta": 5e5},
            "quantization": None,
            "num_scheduler_steps": 1,
            "return_tokens_as_token_ids": True,
            "enable_auto_tool_choice": True,
            "tool_call_parser": "hermes",
            "api_key": "default",
            "lora_modules": modules,
            "middleware": ["a.b", "c.d"],
            "allowed_origins": ["https://x", "*"],
            "disable_fastapi_docs": False,
            "port": 8123,
        },
        known_options=option_strings(parser),
    )
    parsed = parser.parse_args(rendered)

    assert parsed.model == "/models/tiny"
    assert parsed.served_model_name == ["base", "other"]
    assert (parsed.dtype, parsed.max_lora_rank, parsed.max_loras, parsed.max_cpu_loras) == ("float32", 32, 2, 8)
    assert (parsed.enable_lora, parsed.enforce_eager) == (True, True)
    assert parsed.enable_prefix_caching is False
    assert parsed.kv_cache_memory_bytes == 1073741824
    assert parsed.distributed_executor_backend == "vllm.v1.executor.uniproc_executor.UniProcExecutor"
    assert parsed.limit_mm_per_prompt == {"image": 2}
    assert parsed.hf_overrides == {"rope_theta": 5e5}
    assert parsed.quantization is None
    assert (parsed.return_tokens_as_token_ids, parsed.enable_auto_tool_choice) == (True, True)
    assert (parsed.tool_call_parser, parsed.api_key) == ("hermes", ["default"])
    assert [(module.name, module.path) for module in parsed.lora_modules] == [("m@1", "/p,q"), ("m@2", "/r")]
    assert parsed.middleware == ["a.b", "c.d"]
    assert parsed.allowed_origins == ["https://x", "*"]
    assert parsed.disable_fastapi_docs is False
    assert parsed.port == 8123
    assert "num_scheduler_steps" in caplog.text
