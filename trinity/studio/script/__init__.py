"""The script of Streamlit's, apart from the modules that it imports."""
