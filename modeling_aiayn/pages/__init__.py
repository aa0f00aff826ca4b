"""Pages to try a model in the browser, made with Gradio."""
